"""Messages when the program asks for them: pull consumer, reader of ranges, pop."""

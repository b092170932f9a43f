"""The commit log: its files, how records are added to them, and how they are read again."""

"""The rules of the house that a machine can see; ``tests/test_house.py`` applies them."""

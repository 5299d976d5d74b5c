"""What every room needs and that has no physics in it: errors, files, random keys, small algebra, text."""

"""Code without physics that every package below `twolayer` uses: errors, files, random keys, small algebra, text."""

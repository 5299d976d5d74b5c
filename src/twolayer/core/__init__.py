"""What every room needs: fields and their converters, the registry, the codec, random keys, small algebra."""

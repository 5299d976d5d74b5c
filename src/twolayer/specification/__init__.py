"""The specification language: converters for fields, the registry of classes, and the codec to and from JSON."""

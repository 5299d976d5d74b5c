"""The language of specifications: converters of fields, the registry of classes, the codec to JSON and back."""

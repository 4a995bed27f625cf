"""Pure builders of an InferenceService's children, one file for each kind."""

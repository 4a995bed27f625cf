"""The InferenceService resource: its types, the CRD generated from them, and the resolved defaults of its fields."""

"""The service interface of an instance (`interface`), its types, and its implementation (`service`)."""

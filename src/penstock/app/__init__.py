"""The wiring: settings, start-up, and the only place that builds everything."""

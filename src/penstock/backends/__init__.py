"""The worlds in which jobs run. Each driver implements `Backend` of `penstock.protocol.backend`."""

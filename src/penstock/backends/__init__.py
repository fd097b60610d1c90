"""The worlds in which jobs run. Each driver implements `World` of `penstock.protocol.backend`."""

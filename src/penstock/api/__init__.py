"""What an instance can be asked: the service interface and its implementation."""

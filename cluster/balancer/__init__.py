"""The load balancer: pairs every request across the pools and owns it until its one outcome."""

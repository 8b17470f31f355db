"""The running cluster: Ray actors, supervision, load balancer, OpenAI API and command line."""

"""Model execution that both roles share: config, weights, transformer, kernels, sampler."""

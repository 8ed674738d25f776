"""What tests, benchmarks and examples need around the product: servers, proxies, waiting."""

"""Who has which prefix: a radix tree over token ids, block pools and leases. No torch."""

"""The engine: plan, exchange, absorb; and the simulator behind the exchange."""

"""Runs graphs: what the machine has, sessions of one graph each, and the engines behind them."""

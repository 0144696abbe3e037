"""gyre: declarative pipelines for online reinforcement learning of LLM agents at extreme horizons."""

__version__ = "0.1.0"

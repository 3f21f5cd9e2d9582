"""Request -> Plan -> Strategy: what will run, on what, and why."""

from core.plan.assembly import assemble
from core.plan.model import Choice, PassedOver, Plan
from core.plan.request import VARIABLES, WORDS, Request
from core.plan.resolution import resolve

__all__ = ["VARIABLES", "WORDS", "Choice", "PassedOver", "Plan", "Request", "assemble", "resolve"]

"""Request -> Plan -> Strategy: what will run, on what, and why."""

from core.plan.assembly import assemble
from core.plan.foreign_variables import resolve_for
from core.plan.model import Choice, Plan, Rejected
from core.plan.request import ARGUMENTS, VARIABLES, Request
from core.plan.resolution import resolve

__all__ = ["ARGUMENTS", "VARIABLES", "Choice", "Plan", "Rejected", "Request", "assemble", "resolve", "resolve_for"]

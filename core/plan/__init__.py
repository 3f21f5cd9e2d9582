"""Request -> Plan -> Strategy: what will run, on what, and why."""

from .assembly import assemble
from .foreign_variables import resolve_for
from .model import Choice, Plan, Rejected
from .request import ARGUMENTS, VARIABLES, Request
from .resolution import resolve

__all__ = ["ARGUMENTS", "VARIABLES", "Choice", "Plan", "Rejected", "Request", "assemble", "resolve", "resolve_for"]

"""Experiments that run in a browser: a problem as a WebAssembly module, and the page's part of it."""

from twolayer.live.live_programs import LiveProgram as LiveProgram
from twolayer.live.live_programs import live_program as live_program

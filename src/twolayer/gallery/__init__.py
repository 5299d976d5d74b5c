"""The gallery: claims and figures of the source texts, reproduced by this package and checked in numbers."""

from twolayer.core.deprecation import renamed_attributes
from twolayer.gallery.make import Result as Result
from twolayer.gallery.make import make as make
from twolayer.gallery.make import run_script as run_script
from twolayer.gallery.page import Claim as Claim
from twolayer.gallery.page import Made as Made
from twolayer.gallery.page import Page as Page
from twolayer.gallery.page import PageOptions as PageOptions
from twolayer.gallery.page import agrees as agrees
from twolayer.gallery.page import find_page as find_page
from twolayer.gallery.page import has_order as has_order
from twolayer.gallery.page import pages as pages
from twolayer.gallery.page import slope as slope
from twolayer.gallery.page import slope_error as slope_error

__getattr__ = renamed_attributes(__name__, {"Ask": "PageOptions"}, since="0.2")

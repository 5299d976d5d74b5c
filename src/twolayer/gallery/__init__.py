"""The gallery: claims and figures of the source texts, made by this package and held to numbers."""

from twolayer.gallery.make import Result as Result
from twolayer.gallery.make import make as make
from twolayer.gallery.make import run_script as run_script
from twolayer.gallery.page import Ask as Ask
from twolayer.gallery.page import Claim as Claim
from twolayer.gallery.page import Made as Made
from twolayer.gallery.page import Page as Page
from twolayer.gallery.page import agrees as agrees
from twolayer.gallery.page import find_page as find_page
from twolayer.gallery.page import pages as pages
from twolayer.gallery.page import slope as slope

"""A real browser without a screen, where one is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

_BROWSERS = ("chromium", "google-chrome", "chrome")
_OPTIONS = ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Run one; skip the test where there is none."""
    binary = next(filter(None, map(shutil.which, _BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium with its chromedriver is installed")
    options = Options()
    options.binary_location = binary
    for option in _OPTIONS:
        options.add_argument(option)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield running
    finally:
        running.quit()


def look(running: webdriver.Chrome, width: int, height: int, scheme: str) -> None:
    """Have a window of that size, and a user who prefers `scheme`."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    running.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    running.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

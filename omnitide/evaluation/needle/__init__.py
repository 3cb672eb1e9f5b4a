"""Retention measured without a download: facts put into made-up streams, asked for later."""

"""How the small trained model in the package is made. Not part of the installed package."""

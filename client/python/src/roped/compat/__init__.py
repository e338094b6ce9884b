"""Functions under the names and with the arguments of other libraries."""

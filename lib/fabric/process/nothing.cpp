// A library with a name and version nodes; its functions are in the one that it needs.

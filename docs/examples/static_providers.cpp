// The second source file of a program that is linked with -static: docs/building.md.
#include <rcverbs/static_providers.hpp>  // in one source file

// Calls from one library into another, or into itself, go through a table of addresses, into which ours
// can be put.
#pragma once

#include <link.h>

namespace localspec {

// The place of the address of a function that the library calls by this name; null if it does not.
void ** place_of(const link_map * library, const char * function);

// Makes the library call `ours` from now on; false if that is not possible.
bool redirect(void ** place, void * ours);

}  // namespace localspec

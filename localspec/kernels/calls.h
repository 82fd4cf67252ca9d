// Calls from one library into another, or into itself, go through a table of addresses, where ours can
// be put.
#pragma once

#include <link.h>

namespace localspec {

// Where the address of a function is, that the library calls by this name; null if it does not.
void ** place_of(const link_map * library, const char * function);

// Has the library call `ours` from now on; false where that is not possible.
bool redirect(void ** place, void * ours);

}  // namespace localspec

// Holds the pages of docs/reference, which are made from the code, to what the code says now.
#pragma once

#include "absl/strings/string_view.h"

namespace muster {

// Fails where docs/reference/`page` is not `text`, and says how it is made anew: by running the
// test `target` ("//cli/commands:commands_test") with MUSTER_WRITE_REFERENCE=FOLDER, where the page
// is then put.
void ExpectReferencePage(absl::string_view page, absl::string_view text, absl::string_view target);

}  // namespace muster

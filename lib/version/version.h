// The version of Muster: the number in the file VERSION at the root of the repository.
#pragma once

namespace muster {

// Returns "0.3.0": the tag of the images. Programs report ThisBuild().version (build.h), which also
// tells builds between two releases apart.
const char* Version();

}  // namespace muster

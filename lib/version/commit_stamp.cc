// Compiled by Bazel when it links a program. Where it stamps, its header brings the keys of
// tools/workspace_status.sh as macros; elsewhere (`bazel test`) they say "redacted".
#ifndef BUILD_EMBED_LABEL  // where somebody else looks at this file
#define BUILD_EMBED_LABEL "redacted"
#endif

namespace muster {

extern const char kCommitStamp[];
const char kCommitStamp[] = BUILD_EMBED_LABEL;

}  // namespace muster

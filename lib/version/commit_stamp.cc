// Compiled by Bazel when it links a program. With stamping, its header defines the keys of
// tools/workspace_status.sh as macros; otherwise (`bazel test`) their values are "redacted".
#ifndef BUILD_EMBED_LABEL  // for tools that parse this file without Bazel
#define BUILD_EMBED_LABEL "redacted"
#endif

namespace muster {

extern const char kCommitStamp[];
const char kCommitStamp[] = BUILD_EMBED_LABEL;

}  // namespace muster

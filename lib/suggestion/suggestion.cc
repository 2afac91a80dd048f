#include "lib/suggestion/suggestion.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"

namespace muster {
namespace {

constexpr size_t kNameBytesMax =
    64;  // longer words are not typing errors, and the table is quadratic

// Optimal string alignment distance.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> distance(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) distance[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) distance[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      distance[i][j] = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance[a.size()][b.size()];
}

}  // namespace

std::string NearestName(absl::string_view mistyped, const std::vector<std::string>& known) {
  if (mistyped.empty() || mistyped.size() > kNameBytesMax) return "";
  const std::string word = absl::AsciiStrToLower(mistyped);
  size_t nearest = std::max<size_t>(1, word.size() / 3) + 1;
  std::string best;
  for (const std::string& name : known) {
    const size_t edits = EditDistance(word, absl::AsciiStrToLower(name));
    if (edits < nearest) {
      nearest = edits;
      best = name;
    }
  }
  return best;
}

}  // namespace muster

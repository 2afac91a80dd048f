#include "cli/text/links_text.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/text/output.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

std::string LinkTable(const v1::ReadJobLinksResponse& links, LinkColumns columns) {
  const bool all = columns == LinkColumns::kAll;
  std::vector<std::string> header = {"WORKER", "PEER", "TRANSPORT", "SECURITY", "SENT", "RECEIVED"};
  if (all) header.insert(header.end(), {"NETWORK", "DEVICE", "FALLBACK"});
  Table table(std::move(header));
  for (const v1::MemberLinks& member : links.members()) {
    for (const v1::LinkReport& link : member.links()) {
      std::vector<std::string> row = {member.member(),
                                      link.peer(),
                                      OrDash(link.transport()),
                                      OrDash(link.security()),
                                      FormatBytes(link.sent_bytes()),
                                      FormatBytes(link.received_bytes())};
      if (all) {
        row.insert(row.end(),
                   {OrDash(link.network()), OrDash(link.device()), OrDash(link.fallback())});
      }
      table.Add(std::move(row));
    }
  }
  return table.ToString();
}

// Groups the links that fell back by their transport and the reason.
std::string FallbackLines(const v1::ReadJobLinksResponse& links) {
  struct Fallback {
    int links = 0;
    std::string first;
  };
  std::map<std::pair<std::string, std::string>, Fallback> fallbacks;
  for (const v1::MemberLinks& member : links.members()) {
    for (const v1::LinkReport& link : member.links()) {
      if (link.fallback().empty()) continue;
      Fallback& fallback = fallbacks[{link.transport(), link.fallback()}];
      if (++fallback.links == 1) {
        fallback.first = absl::StrCat(member.member(), " to ", link.peer());
      }
    }
  }
  std::string text;
  for (const auto& [key, fallback] : fallbacks) {
    absl::StrAppend(&text, "fell back to ", key.first, " (", key.second, "):\n  ", fallback.first);
    absl::StrAppend(
        &text, fallback.links > 1 ? absl::StrCat(" and ", fallback.links - 1, " more") : "", "\n");
  }
  return text;
}

}  // namespace

std::string LinksText(const std::string& job, const v1::ReadJobLinksResponse& links,
                      LinkColumns columns) {
  if (links.members().empty()) {
    return absl::StrCat(job, ": no worker has reported its links yet, or the job does not run\n");
  }
  std::string text = LinkTable(links, columns) + FallbackLines(links);
  for (const v1::MemberLinks& member : links.members()) {
    if (member.links_left_out() == 0) continue;
    absl::StrAppend(&text, member.member(), " has ", member.links_left_out(),
                    " more links; its metrics have all of them\n");
  }
  return text;
}

}  // namespace muster::cli

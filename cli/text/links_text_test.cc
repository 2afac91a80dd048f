#include "cli/text/links_text.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli::links_text_test {
namespace {

using ::testing::HasSubstr;

v1::LinkReport& Add(v1::MemberLinks& member, const std::string& peer, const std::string& transport,
                    const std::string& security) {
  v1::LinkReport& link = *member.add_links();
  link.set_peer(peer);
  link.set_transport(transport);
  link.set_security(security);
  link.set_sent_bytes(int64_t{1023} << 20);
  link.set_received_bytes(3 << 10);
  return link;
}

v1::MemberLinks& AddMember(v1::ReadJobLinksResponse& links, const std::string& name) {
  v1::MemberLinks& member = *links.add_members();
  member.set_member(name);
  return member;
}

v1::ReadJobLinksResponse TwoWorkers() {
  v1::ReadJobLinksResponse links;
  v1::MemberLinks& near = AddMember(links, "muster-worker-10");
  Add(near, "muster-ps-10/3", "shm", "host");
  v1::LinkReport& rdma = Add(near, "muster-ps-11/0", "rdma", "auth");
  rdma.set_network("rc_mlx5");
  rdma.set_device("mlx5_0:1");
  v1::MemberLinks& far = AddMember(links, "muster-worker-11");
  for (const char* peer : {"muster-ps-10/3", "muster-ps-11/0"}) {
    v1::LinkReport& tcp = Add(far, peer, "tcp", "encrypt");
    tcp.set_network("tls");
    tcp.set_device("eth0");
    tcp.set_fallback("one host, but another user");
  }
  return links;
}

TEST(LinksTextTest, ShowsTheTransportOfEachLinkAndTheFallbacks) {
  const std::string text = LinksText("a-1", TwoWorkers());
  EXPECT_EQ(text,
            "WORKER            PEER            TRANSPORT  SECURITY  SENT        RECEIVED\n"
            "muster-worker-10  muster-ps-10/3  shm        host      1023.0 MiB  3.0 KiB\n"
            "muster-worker-10  muster-ps-11/0  rdma       auth      1023.0 MiB  3.0 KiB\n"
            "muster-worker-11  muster-ps-10/3  tcp        encrypt   1023.0 MiB  3.0 KiB\n"
            "muster-worker-11  muster-ps-11/0  tcp        encrypt   1023.0 MiB  3.0 KiB\n"
            "fell back to tcp (one host, but another user):\n"
            "  muster-worker-11 to muster-ps-10/3 and 1 more\n");
  for (const auto line : absl::StrSplit(text, '\n')) EXPECT_LE(line.size(), 80) << line;
}

TEST(LinksTextTest, WideOutputHasAllColumns) {
  const std::string text = LinksText("a-1", TwoWorkers(), LinkColumns::kAll);
  EXPECT_THAT(text, HasSubstr("RECEIVED  NETWORK  DEVICE    FALLBACK\n"));
  EXPECT_THAT(text, HasSubstr("3.0 KiB   -        -         -\n"));
  EXPECT_THAT(text, HasSubstr("3.0 KiB   rc_mlx5  mlx5_0:1  -\n"));
  EXPECT_THAT(text, HasSubstr("3.0 KiB   tls      eth0      one host, but another "
                              "user\n"));
}

TEST(LinksTextTest, SaysIfThereAreNoReportsOrMoreLinks) {
  v1::ReadJobLinksResponse links;
  EXPECT_EQ(LinksText("a-1", links),
            "a-1: no worker has reported its links yet, or the job does not run\n");
  v1::MemberLinks& member = AddMember(links, "worker-0");
  Add(member, "ps-0/0", "inprocess", "");
  member.set_links_left_out(72);
  EXPECT_EQ(LinksText("a-1", links),
            "WORKER    PEER    TRANSPORT  SECURITY  SENT        RECEIVED\n"
            "worker-0  ps-0/0  inprocess  -         1023.0 MiB  3.0 KiB\n"
            "worker-0 has 72 more links; its metrics have all of them\n");
}

}  // namespace
}  // namespace muster::cli::links_text_test

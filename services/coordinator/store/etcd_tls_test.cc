// Tests an etcd that requires certificates, and coordinators with --store_tls: which are accepted,
// and what the rejected ones report.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "lib/security/certificate.h"
#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"
#include "lib/status/status.h"
#include "proto/third_party/etcd/rpc.pb.h"
#include "services/coordinator/store/etcd_client.h"
#include "services/coordinator/store/store.h"
#include "services/coordinator/store/store_choice.h"
#include "services/coordinator/testing/etcd_server.h"

ABSL_DECLARE_FLAG(std::string, store);
ABSL_DECLARE_FLAG(std::string, store_tls);

namespace muster::etcd_tls_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kDay = absl::Hours(24);
constexpr absl::Duration kPatience = absl::Seconds(60);

class EtcdTlsTest : public ::testing::Test {
 protected:
  // One etcd serves every test. The coordinators that it accepts write below a prefix of their own.
  static void SetUpTestSuite() {
    ours_ = *MakeAuthority("ours", absl::Now(), 30 * kDay);
    std::string folder = ::testing::TempDir() + "/etcd-tls-server-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    server_ = EtcdServer::Start(FolderIn(folder, "etcd", ours_, Server("127.0.0.1"))).release();
  }
  static void TearDownTestSuite() { delete std::exchange(server_, nullptr); }

  void SetUp() override {
    if (server_ == nullptr) GTEST_SKIP() << "etcd is not installed: apt-get install etcd-server";
    ASSERT_NE(mkdtemp(home_.data()), nullptr);
  }

  // Makes a folder for --store_tls that trusts `believed` and has the certificate `mine`, if any.
  std::string Folder(const std::string& name, const CertifiedKey& believed,
                     const std::optional<CertifiedKey>& mine) const {
    return FolderIn(home_, name, believed, mine);
  }
  static std::string FolderIn(const std::string& home, const std::string& name,
                              const CertifiedKey& believed,
                              const std::optional<CertifiedKey>& mine) {
    const TlsFolder folder{absl::StrCat(home, "/", name)};
    EXPECT_EQ(mkdir(folder.path.c_str(), 0700), 0);
    std::ofstream(folder.authority()) << believed.certificate;
    if (mine) {
      std::ofstream(folder.certificate()) << mine->certificate;
      std::ofstream(folder.key()) << mine->key;
    }
    return folder.path;
  }
  static CertifiedKey Server(const std::string& host) {
    return IssueCertificate(
               ours_, {.identity = {Role::kCoordinator, ""}, .hosts = {host}, .lifetime = kDay},
               absl::Now())
        .value();
  }
  static CertifiedKey Client(const CertifiedKey& authority) {
    return IssueCertificate(authority, {.identity = {Role::kAdmin, "store"}, .lifetime = kDay},
                            absl::Now())
        .value();
  }

  // Opens the store as a coordinator with these flags does. Returns the reason if it would wait.
  absl::StatusOr<std::unique_ptr<Store>> Open(const EtcdServer& server, const std::string& tls) {
    absl::SetFlag(&FLAGS_store, absl::StrCat("etcd://", server.address(), "/closed"));
    absl::SetFlag(&FLAGS_store_tls, tls);
    auto choice = StoreChoice::FromFlags(home_ + "/state");
    if (!choice.ok()) return choice.status();
    choice_ = *std::move(choice);
    absl::Status waits_for;
    auto store = choice_->Open({.address = "here:1",
                                .waiting = [&](const absl::Status& why) { waits_for = why; },
                                .wait = [](absl::Duration) { return false; },
                                .lost = [](const absl::Status& why) { ADD_FAILURE() << why; }});
    if (absl::IsCancelled(store.status())) return waits_for;
    return store;
  }

  // Returns the result of a read with these certificates. A rejected client retries until the
  // timeout.
  static absl::Status Ask(const EtcdServer& server, const std::string& tls,
                          absl::Duration timeout = absl::Seconds(1)) {
    const auto client = EtcdClient::Create({.servers = {server.address()}, .tls = tls});
    EXPECT_TRUE(client.ok()) << client.status();
    etcdserverpb::RangeRequest request;
    request.set_key("/closed/leader");
    return (*client)->Range(request, timeout).status();
  }

  // Returns why the store is refused with these certificates. On a busy machine the cause may not
  // be known at once: this tries again until it contains `known`.
  std::string RefusalOf(const std::string& tls, absl::string_view known) {
    absl::Status refused = Open(*server_, tls).status();
    for (const absl::Time end = absl::Now() + kPatience;
         absl::StrContains(refused.message(), ", writing: ") &&
         !absl::StrContains(refused.message(), known) && absl::Now() < end;) {
      refused = Open(*server_, tls).status();
    }
    EXPECT_EQ(ReasonOf(refused), "STORE_UNREACHABLE") << refused;
    return std::string(refused.message());
  }

  std::string home_ = ::testing::TempDir() + "/etcd-tls-XXXXXX";
  const CertifiedKey theirs_ = *MakeAuthority("theirs", absl::Now(), 30 * kDay);
  std::unique_ptr<StoreChoice> choice_;
  static CertifiedKey ours_;
  static EtcdServer* server_;  // nullptr: etcd is not installed
};

CertifiedKey EtcdTlsTest::ours_;
EtcdServer* EtcdTlsTest::server_ = nullptr;

TEST_F(EtcdTlsTest, AcceptsAClientWithACertificateOfItsAuthority) {
  const auto store = Open(*server_, Folder("client", ours_, Client(ours_)));

  ASSERT_TRUE(store.ok()) << store.status();
  Store::Token token;
  token.record.set_id("t-1");
  EXPECT_TRUE((*store)->PutToken(token).ok());
  EXPECT_EQ((*store)->Tokens()->size(), 1);
}

TEST_F(EtcdTlsTest, RejectsAServerOfAnotherAuthorityAndReportsWhy) {
  const std::string refusal =
      RefusalOf(Folder("client", theirs_, Client(ours_)), "certificate verify failed");

  EXPECT_THAT(refusal, HasSubstr(server_->address()));
  EXPECT_THAT(refusal, HasSubstr("certificate verify failed"));
}

TEST_F(EtcdTlsTest, RejectsAServerWhoseCertificateHasAnotherName) {
  const auto other = EtcdServer::Start(Folder("other", ours_, Server("etcd.example.org")));

  // The handshake can take more than a second on a busy machine.
  const std::string tls = Folder("client", ours_, Client(ours_));
  absl::Status refused = Ask(*other, tls);
  for (const absl::Time end = absl::Now() + kPatience;
       absl::StrContains(refused.message(), "Deadline Exceeded") && absl::Now() < end;) {
    refused = Ask(*other, tls);
  }

  EXPECT_EQ(ReasonOf(refused), "STORE_UNREACHABLE") << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("Hostname Verification"));
}

TEST_F(EtcdTlsTest, EtcdRejectsAClientWithoutACertificateOfItsAuthority) {
  EXPECT_TRUE(Ask(*server_, Folder("client", ours_, Client(ours_)), kPatience).ok());

  for (const std::string& tls : {Folder("nobody", ours_, std::nullopt),
                                 Folder("stranger", ours_, Client(theirs_)), std::string("")}) {
    const absl::Status refused = Ask(*server_, tls);
    EXPECT_EQ(ReasonOf(refused), "STORE_UNREACHABLE") << tls << ": " << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(server_->address()));
  }
}

TEST_F(EtcdTlsTest, ARejectedClientReportsWhatToTry) {
  const std::string stranger = Folder("stranger", ours_, Client(theirs_));
  const auto plea = [this](const std::string& tls) {
    return std::string(Open(*server_, tls).status().message());
  };
  EXPECT_THAT(plea(stranger), HasSubstr("the tls.crt in --store_tls=" + stranger +
                                        " must be there, be signed by the authority that "
                                        "etcd asks for"));
  EXPECT_THAT(plea(""), HasSubstr("If etcd speaks TLS, give --store_tls=DIR"));
  const absl::Status restored = choice_->Restore(/*give_up=*/false, {});
  EXPECT_EQ(ReasonOf(restored), "STORE_UNREACHABLE");
  EXPECT_THAT(std::string(restored.message()), HasSubstr("If etcd speaks TLS"));
}

TEST_F(EtcdTlsTest, AMissingFileIsReportedWithTheFlag) {
  const std::string folder = Folder("client", ours_, Client(ours_));
  ASSERT_EQ(remove(TlsFolder{folder}.key().c_str()), 0);

  const auto store = Open(*server_, folder);

  EXPECT_EQ(ReasonOf(store.status()), "CERTIFICATE_FILES");
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("--store_tls: "));
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(TlsFolder{folder}.key()));
}

}  // namespace
}  // namespace muster::etcd_tls_test

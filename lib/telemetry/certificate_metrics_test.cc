#include "lib/telemetry/certificate_metrics.h"

#include <stdlib.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/security/certificate.h"
#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"
#include "lib/telemetry/metrics.h"

namespace muster::certificate_metrics_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kDay = absl::Hours(24);

class CertificateMetricsTest : public ::testing::Test {
 protected:
  CertificateMetricsTest() {
    folder_.path = ::testing::TempDir() + "/certificate-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.path.data()), nullptr);
    std::ofstream(folder_.authority()) << authority_.certificate;
  }
  CertifiedKey Issue(Role role, absl::Duration lifetime) const {
    return *IssueCertificate(
        authority_, {.identity = {role, ""}, .hosts = {"localhost"}, .lifetime = lifetime}, now_);
  }
  void Install(const CertifiedKey& mine) const {
    std::ofstream(folder_.certificate()) << mine.certificate;
    std::ofstream(folder_.key()) << mine.key;
  }
  static std::string Line(absl::string_view name, int64_t value) {
    return absl::StrFormat("\nmuster_tls_%s %d\n", name, value);
  }
  std::string Ends(absl::Duration lifetime) const {
    return Line("certificate_expiry_timestamp_seconds", absl::ToUnixSeconds(now_ + lifetime));
  }

  // Whole seconds, as in certificates.
  const absl::Time now_ = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()));
  const CertifiedKey authority_ = *MakeAuthority("site", now_, 30 * kDay);
  TlsFolder folder_;
  Metrics metrics_;
};

TEST_F(CertificateMetricsTest, ExportsTheExpiryOfThePresentCertificate) {
  metrics_.Add(CertificateMetrics(folder_.path, Role::kWorker));
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr("certificate_expiry"))) << "no certificate yet";
  EXPECT_THAT(metrics_.Render(), HasSubstr(Line("files_faulty", 1)));

  for (const absl::Duration lifetime : {kDay, 2 * kDay}) {
    Install(Issue(Role::kWorker, lifetime));
    const std::string page = metrics_.Render();
    EXPECT_THAT(page, HasSubstr(Ends(lifetime)));
    EXPECT_THAT(page, HasSubstr("\nmuster_tls_certificate_begin_timestamp_seconds "));
    EXPECT_THAT(page, HasSubstr(Line("files_faulty", 0)));
  }
}

TEST_F(CertificateMetricsTest, FilesThatThisProcessCannotUseAreFaulty) {
  metrics_.Add(CertificateMetrics(folder_.path, Role::kWorker));
  const CertifiedKey mine = Issue(Role::kWorker, kDay);
  const CertifiedKey other = Issue(Role::kWorker, kDay);
  const CertifiedKey ps = Issue(Role::kPs, kDay);
  const CertifiedKey ended = Issue(Role::kWorker, -kDay);
  for (const CertifiedKey& faulty :
       {CertifiedKey{mine.certificate, other.key}, ps, ended, CertifiedKey{mine.certificate, ""},
        CertifiedKey{"", mine.key}}) {
    Install(faulty);
    EXPECT_THAT(metrics_.Render(), HasSubstr(Line("files_faulty", 1)));
    Install(mine);
    EXPECT_THAT(metrics_.Render(), HasSubstr(Line("files_faulty", 0)));
  }
}

// Otherwise the server's certificate could expire unnoticed while the file is fine.
TEST_F(CertificateMetricsTest, ExportsTheExpiryOfTheServersCertificateIfEarlier) {
  const CertifiedKey old = Issue(Role::kCoordinator, kDay);
  Install(old);
  const auto server = TlsServer::Open(folder_);
  ASSERT_TRUE(server.ok()) << server.status();
  metrics_.Add(CertificateMetrics(folder_.path, Role::kCoordinator, server->get()));
  const CertifiedKey renewed = Issue(Role::kCoordinator, 2 * kDay);
  Install({renewed.certificate, old.key});

  const std::string page = metrics_.Render();

  EXPECT_THAT(page, HasSubstr(Ends(kDay)));
  EXPECT_THAT(page, HasSubstr(Line("files_faulty", 1)));
}

}  // namespace
}  // namespace muster::certificate_metrics_test

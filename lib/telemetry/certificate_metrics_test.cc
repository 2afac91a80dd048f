#include "lib/telemetry/certificate_metrics.h"

#include <fstream>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/security/certificate.h"
#include "lib/telemetry/metrics.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kName[] = "\nmuster_tls_certificate_expiry_timestamp_seconds ";

void Renew(absl::Duration lifetime) {
  const auto made = MakeAuthority("site", absl::FromUnixSeconds(1'700'000'000), lifetime);
  ASSERT_TRUE(made.ok()) << made.status();
  std::ofstream(::testing::TempDir() + "/tls.crt") << made->certificate;
}

TEST(CertificateMetricsTest, SaysWhenTheCertificateEndsThatIsThereNow) {
  Metrics metrics;
  metrics.Add(CertificateMetrics(::testing::TempDir()));
  EXPECT_THAT(metrics.Render(), Not(HasSubstr(kName))) << "there is none yet";

  Renew(absl::Hours(1));
  EXPECT_THAT(metrics.Render(), HasSubstr(kName + std::string("1700003600\n")));
  Renew(absl::Hours(2));
  EXPECT_THAT(metrics.Render(), HasSubstr(kName + std::string("1700007200\n")));
}

}  // namespace
}  // namespace muster

#include "tests/certificates.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

constexpr absl::Duration kDay = absl::Hours(24);
constexpr Role kRoles[] = {Role::kCoordinator, Role::kPs, Role::kWorker, Role::kAdmin};

std::string MakeFolder() {
  std::string path = ::testing::TempDir() + "/tls-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path) << content;
  EXPECT_EQ(access(path.c_str(), R_OK), 0) << path;
}

}  // namespace

Certificates::Certificates()
    : home_(MakeFolder()), authority_(*MakeAuthority("test", absl::Now(), 30 * kDay)) {
  for (const Role role : kRoles) {
    const TlsFolder folder = Folder(role);
    EXPECT_EQ(mkdir(folder.path.c_str(), 0700), 0);
    Write(folder.authority(), authority_.certificate);
    EXPECT_EQ(symlink("..data/tls.key", folder.key().c_str()), 0);
    EXPECT_EQ(symlink("..data/tls.crt", folder.certificate().c_str()), 0);
  }
  EXPECT_EQ(mkdir(FolderOfNobody().c_str(), 0700), 0);
  Write(TlsFolder{FolderOfNobody()}.authority(), authority_.certificate);
  Renew();
}

TlsFolder Certificates::Folder(Role role) const {
  return {absl::StrCat(home_, "/", RoleName(role))};
}

std::string Certificates::Flag(Role role) const { return "--tls=" + Folder(role).path; }

void Certificates::Renew() {
  ++renewals_;
  for (const Role role : kRoles) {
    CertificateOrder order{.identity = {role, role == Role::kAdmin ? "ann" : ""}, .lifetime = kDay};
    if (role == Role::kCoordinator) order.hosts = {"127.0.0.1"};
    const auto mine = IssueCertificate(authority_, order, absl::Now());
    ASSERT_TRUE(mine.ok()) << mine.status();
    const std::string folder = Folder(role).path;
    const TlsFolder version{absl::StrCat(folder, "/", renewals_)};
    ASSERT_EQ(mkdir(version.path.c_str(), 0700), 0);
    Write(version.key(), mine->key);
    Write(version.certificate(), mine->certificate);
    // gRPC reads a key and a certificate one after the other. It uses the pair if the modification
    // times, in seconds, are the same before and after. So each renewal gets another modification
    // time.
    for (const std::string& file : {version.key(), version.certificate()}) {
      std::filesystem::last_write_time(
          file, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(renewals_));
    }
    ASSERT_EQ(symlink(absl::StrCat(renewals_).c_str(), (folder + "/..new").c_str()), 0);
    ASSERT_EQ(rename((folder + "/..new").c_str(), (folder + "/..data").c_str()), 0);
    if (role == Role::kCoordinator) coordinators_ = ReadCertificate(mine->certificate)->sha256;
  }
}

}  // namespace muster

// The certificates of a cluster whose control plane is closed to strangers.
#pragma once

#include <string>

#include "lib/security/certificate.h"
#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"

namespace muster {

// One authority, and a folder for --tls of each role, in a folder of the test's own. The admin's
// name is "ann"; members' certificates have none. Fails the test where something cannot be made.
// Not thread-safe.
class Certificates {
 public:
  Certificates();

  TlsFolder Folder(Role role) const;
  std::string Flag(Role role) const;  // "--tls=FOLDER"
  // Of somebody who knows whom to believe and has no certificate: ca.crt alone.
  std::string FolderOfNobody() const { return home_ + "/nobody"; }

  // Everybody gets a new key and a new certificate, both at once, as a mounted Secret changes.
  void Renew();

  // The coordinator's newest, by its SHA-256.
  const std::string& coordinators() const { return coordinators_; }

 private:
  const std::string home_;
  const CertifiedKey authority_;
  int renewals_ = 0;
  std::string coordinators_;
};

}  // namespace muster

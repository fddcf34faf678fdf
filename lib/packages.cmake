# packages.cmake — what `cpack` makes of a build: Debian packages, and one archive with all of it.
# The packages have a shared library: build with the preset `package`.
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME rcverbs)
set(CPACK_PACKAGE_VENDOR rcverbs)
set(CPACK_PACKAGE_CONTACT "The rcverbs authors <rcverbs@users.noreply.github.com>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL runtime development tools fabric)
if(TARGET rcverbs_nvme_nbd)
    list(APPEND CPACK_COMPONENTS_ALL nvme_nbd)
endif()
set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# The tools' own libraries are found in the build.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib ${PROJECT_BINARY_DIR}/lib/nvme ${PROJECT_BINARY_DIR}/lib/nvme/nbd)
set(rcverbs_same "librcverbs${rcverbs_soversion} (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME librcverbs${rcverbs_soversion})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "${PROJECT_DESCRIPTION}: the shared library")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS ibverbs-providers)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_BINARY_DIR}/triggers)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/triggers "activate-noawait ldconfig\n")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME librcverbs-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "${PROJECT_DESCRIPTION}: headers, CMake and pkg-config files, and devices in memory for tests")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "${rcverbs_same}, libibverbs-dev, librdmacm-dev, libboost1.81-dev | libboost-dev (>= 1.81), pkg-config | pkgconf"
)

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME rcverbs-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "${PROJECT_DESCRIPTION}: rdma-server, rdma-client, rdma-bench, rdma-doctor, rdma-nvme")
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "${rcverbs_same}")
if(TARGET rcverbs_nvme_nbd)
    string(APPEND CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS ", librcverbs-nvme-nbd${rcverbs_soversion} (= ${PROJECT_VERSION})")
endif()
set(CPACK_DEBIAN_TOOLS_PACKAGE_RECOMMENDS "ibverbs-providers, iproute2")
set(CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/apps/systemd/postinst ${PROJECT_SOURCE_DIR}/apps/systemd/prerm)

# Its own, so that only those who use it have libnbd.
set(CPACK_DEBIAN_NVME_NBD_PACKAGE_NAME librcverbs-nvme-nbd${rcverbs_soversion})
set(CPACK_DEBIAN_NVME_NBD_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_NVME_NBD_DESCRIPTION "${PROJECT_DESCRIPTION}: disks of NBD servers for the NVMe target")
set(CPACK_DEBIAN_NVME_NBD_PACKAGE_DEPENDS "${rcverbs_same}")
set(CPACK_DEBIAN_NVME_NBD_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_BINARY_DIR}/triggers)

set(CPACK_DEBIAN_FABRIC_PACKAGE_NAME rcverbs-fabric)
set(CPACK_DEBIAN_FABRIC_PACKAGE_SECTION utils)
set(CPACK_COMPONENT_FABRIC_DESCRIPTION "RDMA devices in memory for any program, without hardware, kernel modules and rights")
# They have the names of others' libraries, and are not theirs: no package may be told that they are here.
set(CPACK_DEBIAN_FABRIC_PACKAGE_GENERATE_SHLIBS OFF)

# Debian wants the licence in each.
set(rcverbs_packages runtime:librcverbs${rcverbs_soversion} development:librcverbs-dev tools:rcverbs-tools fabric:rcverbs-fabric)
if(TARGET rcverbs_nvme_nbd)
    list(APPEND rcverbs_packages nvme_nbd:librcverbs-nvme-nbd${rcverbs_soversion})
endif()
foreach(package_of IN LISTS rcverbs_packages)
    string(REPLACE ":" ";" package_of "${package_of}")
    list(GET package_of 0 component)
    list(GET package_of 1 package)
    install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} RENAME copyright COMPONENT ${component})
endforeach()

include(CPack)

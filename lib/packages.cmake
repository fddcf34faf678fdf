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
# Stores of the NVMe target on servers: packages of their own, so that only those who use them have the libraries.
set(rcverbs_server_stores "")
foreach(store IN ITEMS nbd rbd)
    if(TARGET rcverbs_nvme_${store})
        list(APPEND rcverbs_server_stores ${store})
        list(APPEND CPACK_COMPONENTS_ALL nvme_${store})
    endif()
endforeach()
set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# The tools' own libraries are found in the build.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib ${PROJECT_BINARY_DIR}/lib/nvme ${PROJECT_BINARY_DIR}/lib/nvme/nbd ${PROJECT_BINARY_DIR}/lib/nvme/rbd)
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
foreach(store IN LISTS rcverbs_server_stores)
    string(APPEND CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS ", librcverbs-nvme-${store}${rcverbs_soversion} (= ${PROJECT_VERSION})")
endforeach()
set(CPACK_DEBIAN_TOOLS_PACKAGE_RECOMMENDS "ibverbs-providers, iproute2")
set(CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/apps/systemd/postinst ${PROJECT_SOURCE_DIR}/apps/systemd/prerm)

foreach(store IN LISTS rcverbs_server_stores)
    string(TOUPPER NVME_${store} component)
    set(CPACK_DEBIAN_${component}_PACKAGE_NAME librcverbs-nvme-${store}${rcverbs_soversion})
    set(CPACK_DEBIAN_${component}_PACKAGE_SECTION libs)
    set(CPACK_DEBIAN_${component}_PACKAGE_DEPENDS "${rcverbs_same}")
    set(CPACK_DEBIAN_${component}_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_BINARY_DIR}/triggers)
endforeach()
set(CPACK_COMPONENT_NVME_NBD_DESCRIPTION "${PROJECT_DESCRIPTION}: disks of NBD servers for the NVMe target")
set(CPACK_COMPONENT_NVME_RBD_DESCRIPTION "${PROJECT_DESCRIPTION}: disks in Ceph clusters for the NVMe target")
# They are loaded when they are used.
set(CPACK_DEBIAN_NVME_RBD_PACKAGE_SUGGESTS "librbd1, librados2")

set(CPACK_DEBIAN_FABRIC_PACKAGE_NAME rcverbs-fabric)
set(CPACK_DEBIAN_FABRIC_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_FABRIC_PACKAGE_SUGGESTS librdmacm1) # its sockets
set(CPACK_COMPONENT_FABRIC_DESCRIPTION "RDMA devices in memory for any program, without hardware, kernel modules and rights")
# They have the names of others' libraries, and are not theirs: no package may be told that they are here.
set(CPACK_DEBIAN_FABRIC_PACKAGE_GENERATE_SHLIBS OFF)

# Debian wants the licence in each.
set(rcverbs_packages runtime:librcverbs${rcverbs_soversion} development:librcverbs-dev tools:rcverbs-tools fabric:rcverbs-fabric)
foreach(store IN LISTS rcverbs_server_stores)
    list(APPEND rcverbs_packages nvme_${store}:librcverbs-nvme-${store}${rcverbs_soversion})
endforeach()
foreach(package_of IN LISTS rcverbs_packages)
    string(REPLACE ":" ";" package_of "${package_of}")
    list(GET package_of 0 component)
    list(GET package_of 1 package)
    install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} RENAME copyright COMPONENT ${component})
endforeach()

include(CPack)

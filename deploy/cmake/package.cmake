# cpack in a build of the preset 'package': roped, libroped0 and libroped-dev
# for Debian and Ubuntu, one from each component.
set(ROPED_MAINTAINER "the authors of roped <roped@roped.invalid>"
  CACHE STRING "Name and address of who makes the packages")
set(ROPED_PACKAGE_SUFFIX "" CACHE STRING
  "What the packages' version has behind roped's, such as +deb12")
set(package_version ${PROJECT_VERSION}${ROPED_PACKAGE_SUFFIX})
set(runtime libroped${ROPED_SOVERSION})
set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_PACKAGE_VERSION ${package_version})
set(CPACK_COMPONENTS_ALL server libraries devel)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE
  OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${ROPED_MAINTAINER})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

set(debian ${CMAKE_CURRENT_SOURCE_DIR}/debian)
set(CPACK_DEBIAN_SERVER_PACKAGE_NAME roped)
set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION net)
set(CPACK_DEBIAN_SERVER_PACKAGE_DEPENDS "init-system-helpers (>= 1.54~)")
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA ${debian}/postinst
  ${debian}/prerm ${debian}/postrm ${debian}/conffiles)
set(CPACK_COMPONENT_SERVER_DESCRIPTION "transformer kernels as a service
A daemon that takes tensors over HTTP and runs transformer kernels on them,
such as rotary embeddings and norms, on every GPU of its host or on the CPU;
and ropectl, its command line.")
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_NAME ${runtime})
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_SECTION libs)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/debian/shlibs
  "libroped_client ${ROPED_SOVERSION} ${runtime} (>= ${PROJECT_VERSION})
libroped_kernels ${ROPED_SOVERSION} ${runtime} (>= ${PROJECT_VERSION})
")
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_CONTROL_EXTRA ${debian}/triggers
  ${CMAKE_CURRENT_BINARY_DIR}/debian/shlibs)
set(CPACK_COMPONENT_LIBRARIES_DESCRIPTION "libraries of roped
libroped_client calls a roped daemon. libroped_kernels runs its transformer
kernels in the caller's own process.")
set(CPACK_DEBIAN_DEVEL_PACKAGE_NAME libroped-dev)
set(CPACK_DEBIAN_DEVEL_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVEL_PACKAGE_DEPENDS "${runtime} (= ${package_version})")
set(CPACK_COMPONENT_DEVEL_DESCRIPTION "headers of the libraries of roped
What programs in C and C++ are built with that use libroped_client or
libroped_kernels: headers, pkg-config files and a CMake package.")

# What Debian wants of every package: a copyright, and what has changed
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(part server:roped libraries:${runtime} devel:libroped-dev)
  string(REGEX MATCH "(.*):(.*)" _ ${part})
  set(component ${CMAKE_MATCH_1})
  set(package ${CMAKE_MATCH_2})
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/debian/${package})
  file(WRITE ${folder}/changelog "${package} (${package_version}) unstable; urgency=medium

  * ${package_version}.

 -- ${CPACK_DEBIAN_PACKAGE_MAINTAINER}  ${now}
")
  execute_process(COMMAND gzip -9nf ${folder}/changelog)
  install(FILES ${folder}/changelog.gz ${debian}/copyright
    DESTINATION share/doc/${package} COMPONENT ${component})
endforeach()
# and compressed manual pages
install(CODE "file(GLOB pages \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/man/man*/*.[1-8])
execute_process(COMMAND gzip -9nf \${pages} COMMAND_ERROR_IS_FATAL ANY)"
  COMPONENT server)
install(FILES ${debian}/lintian-overrides RENAME ${runtime}
  DESTINATION share/lintian/overrides COMPONENT libraries)
include(CPack)

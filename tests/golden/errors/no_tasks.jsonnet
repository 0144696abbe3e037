// A tasks folder that is not there, and a model folder that is none.
(import '../../../pipelines/quickstart.jsonnet')(tasks='no/such/folder') {
  resources+: { learner+: { model: '.' } },
}

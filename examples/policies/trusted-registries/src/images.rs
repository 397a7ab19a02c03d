//! Finds the images of Pods, and of all kinds with a pod template.

use serde::Deserialize;

/// The fields of an object that lead to images. Nested, they describe a Pod (`spec`), a workload (`spec.template.spec`), a
/// `CronJob` (`spec.jobTemplate.spec.template.spec`) and a `PodTemplate` (`template.spec`).
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Images {
    spec: Option<Box<Images>>,
    template: Option<Box<Images>>,
    job_template: Option<Box<Images>>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
    ephemeral_containers: Option<Vec<Container>>,
    volumes: Option<Vec<Volume>>,
}

#[derive(Debug, Deserialize)]
struct Container {
    name: String,
    #[serde(default)]
    image: String,
}

#[derive(Debug, Deserialize)]
struct Volume {
    name: String,
    image: Option<VolumeImage>,
}

/// The image of an image volume, which is pulled and checked like the image of a container.
#[derive(Debug, Deserialize)]
struct VolumeImage {
    #[serde(default)]
    reference: String,
}

#[derive(Debug)]
pub struct Image {
    /// The part of the pod that has the image, such as `container "web"`.
    pub owner: String,
    pub reference: String,
}

impl Images {
    /// Returns all images, in the order of the object.
    pub fn collect(self) -> Vec<Image> {
        let containers = [
            ("init container", self.init_containers),
            ("container", self.containers),
            ("ephemeral container", self.ephemeral_containers),
        ]
        .into_iter()
        .flat_map(|(what, containers)| {
            let image = move |c: Container| Image { owner: format!("{what} {:?}", c.name), reference: c.image };
            containers.unwrap_or_default().into_iter().map(image)
        });
        let volumes = self.volumes.unwrap_or_default().into_iter().filter_map(|volume| {
            Some(Image { owner: format!("volume {:?}", volume.name), reference: volume.image?.reference })
        });
        let nested = [self.spec, self.template, self.job_template].into_iter().flatten().flat_map(|it| it.collect());
        containers.chain(volumes).chain(nested).collect()
    }
}
